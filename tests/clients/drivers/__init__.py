"""One small adapter per client library, all with the methods of `driver.Driver`."""
