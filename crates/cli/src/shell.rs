//! Command lines as a shell reads them.

/// A command line that a shell takes apart into these words again. Words that mean the same to every shell stand as they are.
pub fn command_line<Word: AsRef<str>>(words: &[Word]) -> String {
    let word = |word: &Word| match word.as_ref() {
        plain if is_plain(plain) => plain.to_owned(),
        other => quoted(other),
    };
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// One word for any shell.
pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// zsh replaces a word that begins with `=`.
fn is_plain(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:,@+=".contains(letter);
    !word.is_empty() && !word.starts_with('=') && word.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_plain_is_not_quoted() {
        let words = ["target/release/paceline", "bench", "--hosts", "2x4", "--local-batch", "8,64"];
        assert_eq!(command_line(&words), words.join(" "));
        let words = ["bench", "--methods", "wfbp-ps;schedule=wfbp,arch=a2a:ring", "runs.db#2", ""];
        assert_eq!(command_line(&words), "bench --methods 'wfbp-ps;schedule=wfbp,arch=a2a:ring' 'runs.db#2' ''");
    }

    #[test]
    fn a_shell_reads_the_same_words_again() {
        let words =
            ["it's", "a b", "", "$HOME", "~", "*", "=x", "a=b", "\\", "\"", "!1", "x;y", "#", "é", "\n.", "{a,b}"];
        let script = format!("printf '%s\\0' {}", command_line(&words));
        let said = Command::new("sh").args(["-c", &script]).output().expect("there is a shell");
        let said = String::from_utf8(said.stdout).expect("as it was given");
        assert_eq!(said.split_terminator('\0').collect::<Vec<_>>(), words);
    }
}
