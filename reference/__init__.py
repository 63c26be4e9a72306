"""What a correct slot mapping is: cases, the contract, the per-token oracle and the verdict. Standard library only."""
