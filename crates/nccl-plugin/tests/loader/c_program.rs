//! A program in C that has the header and is linked with the library.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::plugin_path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// None, with a line on standard error, where there is none; `.ci/run` asks for one.
fn compiler() -> Option<&'static str> {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let found = ["cc", "gcc", "clang"].into_iter().find(there);
    if found.is_none() {
        assert!(std::env::var_os("PACELINE_LONG_TESTS").is_none(), "there is no C compiler: install one");
        eprintln!("skipped: there is no C compiler");
    }
    found
}

#[test]
fn a_c_program_pushes_a_policy() {
    let Some(compiler) = compiler() else { return };
    let (root, library) = (Path::new(ROOT), plugin_path());
    let folder = library.parent().expect("a folder");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("c-program-{}", std::process::id()));
    let mut compile = Command::new(compiler);
    compile.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-I"]).arg(root.join("include"));
    compile.arg(root.join("tests/loader/program.c")).arg(&library);
    // Whether the library says its name or not, it is found.
    let output = compile.arg(format!("-Wl,-rpath,{}", folder.display())).arg("-o").arg(&program).output();
    let output = output.expect("a compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut run = Command::new(&program);
    run.env_remove("PACELINE_TUNE").env_remove("PACELINE_TUNE_FILE").env_remove("PACELINE_TUNE_PROFILE");
    let output = run.output().expect("the program");
    std::fs::remove_file(&program).expect("our own file");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == "pushed\n", "{out}{error}");
}
