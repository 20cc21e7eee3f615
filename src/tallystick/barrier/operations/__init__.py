"""What can be done in the service's own database, each written once for every engine and driver."""
