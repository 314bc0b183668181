//! The `reef` program: everything is in the library.

fn main() -> std::process::ExitCode {
    reef::cli::main()
}
