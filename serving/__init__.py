"""What the two model servers and the gateway share; knows no service and no proto of ours."""
