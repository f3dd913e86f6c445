"""What a developer runs: demo.py, test.py and the test bed that they share."""
