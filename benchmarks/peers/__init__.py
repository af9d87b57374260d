"""Our two model servers beside other people's, on the same weights and the same texts, and beside no server at all."""
