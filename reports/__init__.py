"""From a failing example to something a person can act on: failure reports and the summary of a run. Data first."""
