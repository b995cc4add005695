//! Rule: prose uses plain English and the standard terms (STYLE.md).

use crate::defect::Defect;
use crate::prose::{self, Word};
use crate::tree::Tree;

/// A phrase that prose must not contain, and its replacements.
struct Phrase {
    /// In lower case. Alternatives of a word stand with `|` between them.
    words: &'static [&'static str],
    /// Only where the phrase begins a sentence.
    at_start: bool,
    /// Beginnings of the paths to which this does not apply.
    except: &'static [&'static str],
    instead: &'static str,
}

const fn phrase(words: &'static [&'static str], instead: &'static str) -> Phrase {
    Phrase { words, at_start: false, except: &[], instead }
}

const fn start(words: &'static [&'static str], instead: &'static str) -> Phrase {
    Phrase { words, at_start: true, except: &[], instead }
}

/// In DNS, the answer section is a part of a response.
const DNS: &[&str] = &["crates/http/dns/", "crates/proxy/proxy/src/names"];

const NOUN: &str = "a noun as the subject";
const PERSON: &str = "users, operators, clients, or the thread or process";

const RULED_OUT: &[Phrase] = &[
    start(&["who|whoever|whose|whom"], NOUN),
    start(&["what|whatever|whichever"], NOUN),
    start(&["of|for|by|from|to", "who|whom|what|which|whose|those"], NOUN),
    start(&["that", "which"], NOUN),
    start(&["so", "many|long|much|far"], "a noun with a number"),
    Phrase {
        words: &["nobody|somebody|anybody|everybody|whoever|whomever"],
        at_start: false,
        except: GENERATED_MAN,
        instead: PERSON,
    },
    phrase(&["those", "who"], PERSON),
    phrase(&["he|him|his|she|her"], PERSON),
    phrase(&["is|are|was|were|be|been|being", "told"], "receives, learns, is notified"),
    phrase(&["told|tells|telling"], "notifies, reports, returns, publishes"),
    phrase(&["is|are|was|were|be|been|being", "asked"], "queries, requests, is queried"),
    phrase(&["heed|heeds|heeded|heeding|unheeded"], "apply, obey"),
    phrase(&["heard|hears|hear"], "receives, notices"),
    phrase(&["let|lets|letting", "go"], "release, close, evict"),
    phrase(&["in", "vain"], "wasted, without success"),
    phrase(&["as", "ever"], "as usual, or nothing"),
    phrase(&["as", "it", "were"], "nothing"),
    phrase(&["all", "the", "same"], "nevertheless, still"),
    phrase(&["for", "good"], "permanently"),
    phrase(&["stands|stand|standing|stood", "still"], "is stalled"),
    phrase(&["past", "the", "cache"], "bypasses the cache"),
    phrase(&["for", "want", "of"], "because … is missing"),
    phrase(&["of", "its|their|our", "own", "accord"], "by itself"),
    phrase(&["letter|letters"], "message"),
    phrase(&["condemned|condemn|spoiled|forgiven"], "evacuating, tainted, in grace"),
    Phrase {
        words: &["booster|boosters"],
        at_start: false,
        except: FILE_SET,
        instead: "reverse proxy",
    },
    phrase(&["doubtful"], "ambiguous"),
    Phrase {
        words: &["answer|answers|answered|answering|unanswered"],
        at_start: false,
        except: DNS,
        instead: "response, respond, serve",
    },
];

/// The load generator, one of whose sets of files has the name of the paper's experiment.
const FILE_SET: &[&str] = &["crates/test/lab/src/load/", "crates/test/lab/src/commands/load.rs"];

/// Generated man pages, which name the user `nobody` without backquotes. The rule checks the texts
/// from which they are generated.
const GENERATED_MAN: &[&str] = &["man/millrace"];

/// Files that quote these phrases on purpose: the rules of style and the list of changed names.
const UNCHECKED: [&str; 3] = ["STYLE.md", "CHANGELOG.md", "xtask/src/tidy/"];

/// Returns the phrases that are ruled out.
pub(super) fn check(tree: &Tree) -> Vec<Defect> {
    let mut defects = Vec::new();
    let sources = tree.sources.iter().map(|(path, source)| (path, &source.text));
    for (path, text) in sources.chain(&tree.texts).chain(&tree.manifests) {
        if is_checked(path) {
            for block in prose::blocks(path, text) {
                find(path, &block, true, &mut defects);
            }
        }
    }
    for (path, source) in &tree.sources {
        // Texts of the program. Tests contain messages of other programs.
        let is_program = path.starts_with("crates/") && path.contains("/src/");
        if is_program && is_checked(path) && !path.ends_with("tests.rs") {
            for block in prose::literals(&source.tokens) {
                find(path, &block, false, &mut defects);
            }
        }
    }
    defects
}

fn is_checked(path: &str) -> bool {
    !UNCHECKED.iter().any(|unchecked| path.starts_with(unchecked))
}

fn find(path: &str, block: &[Word], has_sentences: bool, defects: &mut Vec<Defect>) {
    for (at, word) in block.iter().enumerate() {
        for phrase in RULED_OUT {
            let is_here = !phrase.at_start || has_sentences && word.begins_sentence;
            let is_exempt = phrase.except.iter().any(|prefix| path.starts_with(prefix));
            if is_here && !is_exempt && is_at(&block[at..], phrase.words) {
                let found: Vec<&str> =
                    block[at..at + phrase.words.len()].iter().map(|it| it.text.as_str()).collect();
                let place = if phrase.at_start { "sentence begins with" } else { "text contains" };
                let wrong = format!("{place} {:?}", found.join(" "));
                defects.push(Defect::new(path, word.line, wrong, phrase.instead));
            }
        }
    }
}

fn is_at(words: &[Word], phrase: &[&str]) -> bool {
    words.len() >= phrase.len()
        && words.iter().zip(phrase).all(|(word, any)| any.split('|').any(|it| it == word.text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::test_tree;

    fn defects(path: &str, text: &str) -> Vec<String> {
        check(&test_tree(&[(path, text)])).iter().map(Defect::to_string).collect()
    }

    #[test]
    fn ruled_out_words_are_found_in_every_kind_of_file() {
        for (path, text) in [
            ("a.rs", "/// Waits for nobody.\nfn f() {}\n"),
            ("crates/os/a/src/a.rs", "fn f() { g(\"waits for nobody\"); }"),
            ("crates/os/a/programs/a.h", "// Waits for nobody.\n"),
            ("scripts/a.py", "\"\"\"Waits for nobody.\"\"\"\n"),
            ("tests/scenarios/a.scn", "# Waits for nobody.\n"),
            ("README.md", "Waits for\nnobody.\n"),
            ("man/a.3", "Waits for nobody.\n"),
            ("a.py", "f()  # Waits for nobody.\n"),
            ("Makefile", "a: ## Waits for nobody.\n"),
            ("examples/a.service", "# Waits for nobody.\n"),
        ] {
            let found = defects(path, text);
            assert_eq!(found.len(), 1, "{path}: {found:?}");
            assert!(found[0].contains("text contains \"nobody\""), "{found:?}");
        }
    }

    #[test]
    fn each_phrase_is_found() {
        for phrase in RULED_OUT {
            for first in phrase.words[0].split('|') {
                let mut words = vec![first];
                words.extend(phrase.words[1..].iter().map(|word| word.split('|').next().unwrap()));
                let text = format!("// {} follows.\n", words.join(" "));
                let found = defects("a.rs", &text);
                assert!(!found.is_empty(), "{text}");
            }
        }
    }

    #[test]
    fn plain_sentences_and_questions_pass() {
        for text in [
            "// The worker notifies the client, which knows what it sent.\n",
            "// What is this? Which one?\n",
            "// `What answers nobody` is code.\n",
            "let a = \"nobody\";\n",
        ] {
            let text =
                if text.starts_with("let") { format!("fn f() {{ {text} }}") } else { text.into() };
            assert_eq!(defects("a.rs", &text), [""; 0], "{text}");
        }
        let dns = "// The answer section has two records.\n";
        assert_eq!(defects("crates/http/dns/src/message.rs", dns), [""; 0]);
        assert_eq!(defects("CHANGELOG.md", "nobody\n"), [""; 0]);
    }
}
