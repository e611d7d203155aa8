"""Files of tensors: written tensor by tensor, as one file or as several with an index."""
