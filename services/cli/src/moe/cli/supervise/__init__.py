"""Runs a plan as processes of this machine: started from one fork server, watched, restarted and ended in order."""
