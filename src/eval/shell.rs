//! The commands of a line of shell, well enough to tell what it wants. Nothing depends on it for safety: what it
//! overlooks fails in the sandbox.

/// One simple command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) words: Vec<String>,
}

/// Words that stand before a command.
const BEFORE: [&str; 15] = [
    "!", "{", "command", "do", "elif", "else", "env", "exec", "if", "nohup", "sudo", "then", "time", "until", "while",
];

impl Command {
    /// Its words from the program on.
    fn proper(&self) -> &[String] {
        let is_assignment = |word: &str| word.split_once('=').is_some_and(|(name, _)| is_variable(name));
        let skipped = self
            .words
            .iter()
            .take_while(|word| is_assignment(word) || BEFORE.contains(&word.as_str()))
            .count();
        &self.words[skipped..]
    }

    /// The program, without its directory.
    pub(super) fn name(&self) -> Option<&str> {
        let program = self.proper().first()?;
        Some(program.rsplit('/').next().unwrap_or(program))
    }

    /// What it is given.
    pub(super) fn arguments(&self) -> &[String] {
        self.proper().get(1..).unwrap_or_default()
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// The commands of a text: split at `;`, `&`, `|`, parentheses and ends of lines outside of quotes.
pub(super) fn commands(text: &str) -> Vec<Command> {
    let mut found = vec![Command::default()];
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => {
                if let Some(next) = letters.next() {
                    word.get_or_insert_default().push(next);
                }
            }
            (None, ';' | '&' | '|' | '(' | ')' | '\n' | '`') => {
                end(&mut found, &mut word);
                found.push(Command::default());
            }
            (None, _) if letter.is_whitespace() => end(&mut found, &mut word),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    end(&mut found, &mut word);
    found.retain(|command| !command.words.is_empty());
    found
}

fn end(found: &mut [Command], word: &mut Option<String>) {
    if let (Some(command), Some(word)) = (found.last_mut(), word.take()) {
        command.words.push(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_what_they_are_given() {
        let names = |text: &str| -> Vec<String> {
            let all = commands(text);
            all.iter().filter_map(Command::name).map(str::to_owned).collect()
        };
        assert_eq!(
            names("A=1 B=\"x y\" sudo /usr/bin/apt-get update && echo 'a; pip install b' | tee out; (cd x)"),
            ["apt-get", "echo", "tee", "cd"]
        );
        assert_eq!(names("if ! test -f a\nthen mkdir -p b\nfi"), ["test", "mkdir", "fi"]);
        assert_eq!(names("x=$(curl -s http://a) || true"), ["curl", "true"]);
        assert_eq!(names(""), Vec::<String>::new());
        let made = commands("mkdir -p '/a b' \"c\\\"d\" e\\ f");
        assert_eq!(made[0].arguments(), ["-p", "/a b", "c\"d", "e f"]);
    }
}
