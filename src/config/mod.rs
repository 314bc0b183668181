//! Law: turns a deployment file, the environment and the command line into settings, each value with its source. Owns
//! the schema and its errors; starts nothing and opens nothing but the file. State: none. Fails with a typed error that
//! names file, line and key; the command line renders it and exits with 2.
