"""The steps of an evaluation, one module each: what it reads, asks the servers, and leaves in the outputs directory."""
