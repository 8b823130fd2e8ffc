//! Examples with the drivers of databases. All of them are in the folder `examples`; the tests run them on real servers.
