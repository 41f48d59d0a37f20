//! The program; all of it is in the library, so that tests and fuzzers reach what it makes of words and files.

fn main() -> std::process::ExitCode {
    stash_admin::main()
}
