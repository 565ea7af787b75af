"""The signalbox: the command line and the headless front end."""
