"""Start the ranks of one machine, watch them, and report why they failed.

`launcher` starts the ranks with torch's elastic agent and waits for them; `local_rendezvous` gives the agent an address
for the ranks without opening a port itself. `rank_main` is the program of a rank. `parent_watch` kills a rank when its
launcher dies. `hung_ranks` finds the ranks that hang, by what `life_notes` says of them and by their processes;
`kill_hung_ranks` kills these and ranks that do not end after another has failed. `first_failure` finds the rank that
failed first. `run_regrouping` lets ranks go on without one that is lost: `rank_processes` starts them without
torch's agent, and `regroup_files` is how they agree.
"""
