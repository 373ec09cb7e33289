"""The pieces of `lunarlander_study.py`: what is run, how a run is measured, where it is kept, how it is shown."""
