//! The prose of a file: sentences in comments, documents, man pages and texts of the program.

use proc_macro2::{TokenStream, TokenTree};

/// A word of prose, in lower case and without punctuation. Code in backquotes is one word, "`".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    /// The number of the line, from 1.
    pub(crate) line: usize,
    /// The word begins a sentence that is not a question.
    pub(crate) begins_sentence: bool,
}

/// The kind of file, which decides how its prose is marked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    /// `//`, and `/* … */` in C.
    Slashes,
    /// `#`, also behind code, and `"""` in Python.
    Hashes,
    Markdown,
    Man,
}

/// Returns the blocks of prose of a file; no sentence runs from one block into the next. Files of
/// other formats have none.
pub(crate) fn blocks(path: &str, text: &str) -> Vec<Vec<Word>> {
    let Some(format) = format(path, text) else { return Vec::new() };
    let lines: Vec<Option<String>> = match format {
        Format::Slashes => text.lines().map(slashed).collect(),
        Format::Hashes => hashed(text),
        Format::Markdown => unfenced(text),
        Format::Man => man_lines(text),
    };
    split(lines.into_iter().enumerate())
}

/// Returns the string literals of a Rust file that look like prose, each as a block. A literal
/// looks like prose if it has a blank between two words.
pub(crate) fn literals(tokens: &TokenStream) -> Vec<Vec<Word>> {
    let mut blocks = Vec::new();
    collect_literals(tokens, &mut blocks);
    blocks
}

fn collect_literals(tokens: &TokenStream, blocks: &mut Vec<Vec<Word>>) {
    let mut is_doc = false;
    for token in tokens.clone() {
        match &token {
            TokenTree::Group(group) => collect_literals(&group.stream(), blocks),
            TokenTree::Ident(ident) => is_doc = ident == "doc",
            TokenTree::Literal(literal) if !is_doc => {
                let source = literal.to_string();
                if let Ok(text) = syn::parse_str::<syn::LitStr>(&source) {
                    let line = literal.span().start().line;
                    let lines = text.value().replace('\n', " ");
                    if lines.trim().contains(' ') {
                        blocks.extend(split([(line - 1, Some(lines))].into_iter()));
                    }
                }
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

fn format(path: &str, text: &str) -> Option<Format> {
    let name = path.rsplit('/').next().unwrap_or(path);
    Some(match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("rs" | "c" | "h" | "js" | "mjs") => Format::Slashes,
        Some("py" | "sh" | "scn" | "toml" | "yml" | "in" | "service" | "socket") => Format::Hashes,
        Some("txt") if path.starts_with("tests/corpus/") => Format::Hashes,
        Some("md") => Format::Markdown,
        Some(section) if path.starts_with("man/") && section.len() == 1 => Format::Man,
        None if text.starts_with("#!") || name == "Makefile" => Format::Hashes,
        _ => return None,
    })
}

/// Returns the comment of a line of Rust or C.
fn slashed(line: &str) -> Option<String> {
    let trimmed = line.trim_start();
    if let Some(comment) = trimmed.strip_prefix("//") {
        return Some(comment.trim_start_matches(['/', '!']).to_owned());
    }
    if let Some(comment) = trimmed.strip_prefix("/*").or_else(|| trimmed.strip_prefix("* ")) {
        return Some(comment.trim_end().trim_end_matches("*/").to_owned());
    }
    comment_behind(line, " // ", &['"'])
}

/// Returns the comment behind code. A `sign` between two `quotes` is in a string instead.
fn comment_behind(line: &str, sign: &str, quotes: &[char]) -> Option<String> {
    let is_outside = |at: &usize| {
        quotes.iter().all(|quote| line[..*at].matches(*quote).count().is_multiple_of(2))
    };
    let at = line.match_indices(sign).map(|(at, _)| at).find(is_outside)?;
    Some(line[at + sign.len()..].to_owned())
}

/// Returns comments behind `#`, and texts between `"""`.
fn hashed(text: &str) -> Vec<Option<String>> {
    let mut is_quoted = false;
    let line = |line: &str| {
        let trimmed = line.trim();
        let quotes = trimmed.matches("\"\"\"").count();
        if quotes > 0 || is_quoted {
            // A docstring begins its line. Other strings in triple quotes, such as configurations,
            // follow an assignment or are in a call.
            let is_doc = trimmed.trim_start_matches('r').starts_with("\"\"\"") || is_quoted;
            if quotes == 1 {
                is_quoted = !is_quoted && is_doc;
            }
            return is_doc.then(|| trimmed.replace("\"\"\"", " "));
        }
        let Some(comment) = trimmed.strip_prefix('#') else {
            // `##` is help in a Makefile.
            let mut signs = [" # ", " ## "].iter();
            return signs.find_map(|sign| comment_behind(line, sign, &['"', '\'']));
        };
        (!comment.starts_with('!')).then(|| comment.to_owned())
    };
    text.lines().map(line).collect()
}

/// Returns the lines of Markdown that are not code.
fn unfenced(text: &str) -> Vec<Option<String>> {
    let mut is_fenced = false;
    let line = |line: &str| {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            return None;
        }
        let is_code = is_fenced || line.starts_with("    ");
        (!is_code).then(|| line.trim_start_matches(['#', '>']).replace('|', " . "))
    };
    text.lines().map(line).collect()
}

/// Returns the text of a man page. A heading, and the tag of a paragraph, end a sentence.
fn man_lines(text: &str) -> Vec<Option<String>> {
    let mut is_tag = false;
    let line = |line: &str| {
        let ends = is_tag || [".SH ", ".SS ", ".IP "].iter().any(|name| line.starts_with(name));
        is_tag = [".TP", ".TQ"].iter().any(|name| line.starts_with(name));
        man_line(line).map(|text| if ends { text + " ." } else { text })
    };
    text.lines().map(line).collect()
}

/// Returns the text of a line of a man page.
fn man_line(line: &str) -> Option<String> {
    if line.starts_with(".\\\"") {
        return None;
    }
    let text = match line.strip_prefix('.') {
        Some(request) => request.split_once(' ')?.1,
        None => line,
    };
    Some(text.replace("\\fB", "").replace("\\fI", "").replace("\\fR", "").replace("\\-", "-"))
}

/// Splits lines into blocks of words. The lines are numbered from 0. A line without prose ends a
/// block.
fn split(lines: impl Iterator<Item = (usize, Option<String>)>) -> Vec<Vec<Word>> {
    let mut blocks = vec![Vec::new()];
    for (number, line) in lines {
        match line {
            Some(line) if !line.trim().is_empty() => {
                let block = blocks.last_mut().expect("the list starts with one block");
                words_of_line(&line, number + 1, block);
            }
            _ => blocks.push(Vec::new()),
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks.iter_mut().for_each(|block| mark_sentences(block));
    blocks.into_iter().map(|block| block.into_iter().map(|(word, _)| word).collect()).collect()
}

/// A word and the punctuation behind it.
type Marked = (Word, String);

fn words_of_line(line: &str, number: usize, block: &mut Vec<Marked>) {
    let mut is_code = false;
    let mut plain = String::new();
    for character in line.chars() {
        match character {
            '`' if is_code => is_code = false,
            '`' => {
                is_code = true;
                plain.push('`');
            }
            _ if is_code => {}
            other => plain.push(other),
        }
    }
    for token in plain.split_whitespace() {
        let word = token.trim_matches(|c: char| !c.is_alphanumeric() && c != '`');
        let behind = &token[token.rfind(word).unwrap_or(0) + word.len()..];
        if word.is_empty() {
            // Punctuation that stands alone, such as a list's marker or a table's border.
            if let Some((_, last)) = block.last_mut() {
                last.push_str(token);
            }
            continue;
        }
        let word = Word { text: word.to_lowercase(), line: number, begins_sentence: false };
        block.push((word, behind.to_owned()));
    }
}

/// Marks the words that begin sentences, except questions.
fn mark_sentences(block: &mut [Marked]) {
    let mut from = 0;
    for at in 0..block.len() {
        let behind = &block[at].1;
        let ends = behind.contains(['.', '!', '?', ':', ';']) || at + 1 == block.len();
        if ends {
            block[from].0.begins_sentence = !behind.contains('?');
            from = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginnings(path: &str, text: &str) -> Vec<(String, usize)> {
        let words = blocks(path, text).into_iter().flatten();
        words.filter(|word| word.begins_sentence).map(|word| (word.text, word.line)).collect()
    }

    fn all(path: &str, text: &str) -> String {
        let words: Vec<String> =
            blocks(path, text).into_iter().flatten().map(|word| word.text).collect();
        words.join(" ")
    }

    #[test]
    fn comments_are_prose_and_strings_are_not() {
        let text =
            "//! Head of `the` file.\nlet a = \"http://b // c\"; // Behind.\nf();\n/// Doc\n";
        assert_eq!(all("a.rs", text), "head of ` file behind doc");
        assert_eq!(all("a.h", "/* One\n * two. */\nint f;\n"), "one two");
        assert_eq!(all("run", "#!/bin/sh\n# One.\necho two\n"), "one");
        assert_eq!(
            all("a.py", "\"\"\"One\ntwo.\"\"\"\nx = '#'  # Three\n# Four\n"),
            "one two three four"
        );
        assert_eq!(all("a.md", "# One\n```\ncode\n```\n    code\ntwo\n"), "one two");
        assert_eq!(all("man/a.1", ".\\\" no\n.SH ONE\n.B two\nthree\n"), "one two three");
        assert_eq!(all("a.csv", "one two\n"), "");
    }

    #[test]
    fn sentences_begin_behind_stops_and_questions_do_not_count() {
        let text = "/// One two: three four. Five\n/// six? Seven.\n\n/// Eight\n";
        let expected = [("one", 1), ("three", 1), ("seven", 2), ("eight", 4)];
        assert_eq!(beginnings("a.rs", text), expected.map(|(word, line)| (word.to_owned(), line)));
        let page = ".SH ONE\ntwo\n.TP\n.B three\nFour\nfive\n";
        let expected = [("one", 1), ("two", 2), ("three", 4), ("four", 5)];
        assert_eq!(
            beginnings("man/a.1", page),
            expected.map(|(word, line)| (word.to_owned(), line))
        );
    }

    #[test]
    fn literals_with_blanks_are_prose() {
        let text = "fn f() {\n/// Doc text.\nlet a = \"one two\"; let b = \"three\"; }";
        let words: Vec<String> =
            literals(&text.parse().unwrap()).into_iter().flatten().map(|w| w.text).collect();
        assert_eq!(words, ["one", "two"]);
    }
}
