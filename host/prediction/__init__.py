"""How long a mini-batch takes, predicted and measured."""
