"""What a report shows, before it is drawn: its subject, plans in a few figures, and the words for them."""
