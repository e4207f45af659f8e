"""Other diagnosis tools on the same training cases, their words mapped to our rule families."""
