"""How cases are drawn: geometry, batches, block tables, whole cases, and the pool of compile-time settings of a run."""
