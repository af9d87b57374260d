"""A simulation of batching: arrival traces replayed on a virtual clock against the policy that serves and others."""
