//! The `reef` program: everything is in the library.

fn main() {
    reef::cli::main()
}
