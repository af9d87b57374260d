"""The steps of an evaluation, one module each: what a step reads, asks the servers, and leaves in the outputs directory."""
