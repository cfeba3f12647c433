//! What the program that trains has: the header for C, and the module for Python.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::alone;
use crate::library::{Library, Opened, plugin_path};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Names that begin so, in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words.filter(|word| word.starts_with("paceline_nccl_")).map(str::to_owned).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).expect("a file of this crate")
}

#[test]
fn header_and_module_have_the_functions_of_the_library() {
    let _alone = alone();
    let source = read("src/c_api.rs");
    let exported =
        source.lines().filter(|line| line.contains("extern \"C\" fn")).flat_map(names).collect::<BTreeSet<_>>();
    assert!(exported.len() >= 10, "{exported:?}");
    let mut of_header = names(&read("include/paceline_nccl.h"));
    assert!(of_header.remove("paceline_nccl_sample") && of_header.remove("paceline_nccl_h"));
    assert_eq!(of_header, exported);
    assert_eq!(names(&read("python/paceline_nccl.py")), exported);
    let opened = Opened::plugin();
    for name in exported {
        assert!(!opened.symbol(&name).is_null(), "{name} is not in the library");
    }
}

/// What C sees of a sample is what there is.
#[test]
fn the_header_is_c_and_its_sample_has_our_layout() {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let compiler = ["cc", "gcc", "clang"].into_iter().find(there).expect("a C compiler, which rustc links with, too");
    let path = temporary("layout.c");
    let size = size_of::<nccl_tuner_paceline::samples::Sample>();
    let text = format!(
        "#include \"paceline_nccl.h\"\n#include <stddef.h>\n\
         _Static_assert(sizeof(struct paceline_nccl_sample) == {size}, \"size\");\n\
         _Static_assert(offsetof(struct paceline_nccl_sample, span_ns) == {}, \"span\");\n\
         _Static_assert(offsetof(struct paceline_nccl_sample, hosts) == {}, \"hosts\");\n\
         _Static_assert(offsetof(struct paceline_nccl_sample, threads) == {}, \"threads\");\n",
        std::mem::offset_of!(nccl_tuner_paceline::samples::Sample, span_ns),
        std::mem::offset_of!(nccl_tuner_paceline::samples::Sample, hosts),
        std::mem::offset_of!(nccl_tuner_paceline::samples::Sample, threads),
    );
    fs::write(&path, text).expect("a file");
    let mut compile = Command::new(compiler);
    compile.args(["-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-I"]);
    let output = compile.arg(Path::new(ROOT).join("include")).arg(&path).output().expect("a compiler");
    fs::remove_file(&path).expect("our own file");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a file beside this one with the module, the library's path as its argument. None without Python.
fn python(file: &str) -> Option<String> {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let Some(python) = ["python3", "python"].into_iter().find(there) else {
        eprintln!("skipped: there is no Python");
        return None;
    };
    let mut run = Command::new(python);
    run.arg("-B").arg(Path::new(ROOT).join("tests/loader").join(file)).arg(plugin_path());
    run.env("PYTHONPATH", Path::new(ROOT).join("python"));
    let output = run.env_remove("PACELINE_TUNE").env_remove("PACELINE_TUNE_FILE").output().expect("Python");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{file}: {out}{error}");
    Some(out.into_owned())
}

#[test]
fn the_module_for_python_works() {
    let size = size_of::<nccl_tuner_paceline::samples::Sample>().to_string();
    assert!(python("module.py").is_none_or(|out| out.trim() == size));
}

/// Ranks that agree, that have different policies, that refuse, that have no library, and that fail half-way: nobody waits
/// for ever, and all end with the same policy.
#[test]
fn ranks_switch_together_or_not_at_all() {
    assert!(python("agreement.py").is_none_or(|out| out.trim() == "agreed"));
}

/// The loop that the page tells people to write: the command fails, and takes too long; a rank cannot write; all is decided, and is open
/// again. The job goes on, and all ranks end under the last policy.
#[test]
fn the_loop_of_the_documentation_trains_and_learns() {
    assert!(python("learning.py").is_none_or(|out| out.trim_end().ends_with("learned")));
}

/// A script that needs a GPU, and is run by hand: what it would say, and that its policies are policies.
#[test]
fn what_the_script_for_one_gpu_judges_is_right() {
    assert!(python("one_gpu.py").is_none_or(|out| out.trim() == "judged"));
}

fn temporary(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}
