"""How to run the code of methods' authors on given clients: a file a repository, see `authors_steps.py`."""
