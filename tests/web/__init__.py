"""A package, so that fixtures of that scope, the browser above all, end before tests of other folders begin."""
