//! Cases and their files.

use std::fs;
use std::path::Path;

use super::literal::{Role, unescaped};

/// The expected outcome of one request of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The request reached the origin, and the origin's response reached the client.
    Forwarded,
    /// The program sent its own response and closed. No byte reached the origin.
    Refused(OwnResponse),
    /// As `Refused`, but a part of the request may have reached the origin, never all of it.
    Cut(OwnResponse),
    /// The program sent its own response. No byte reached the origin.
    Served(OwnResponse),
    /// The request reached the origin, and the client got the program's own response.
    Generated(OwnResponse),
    /// The origin responded before the end of the request, and the response reached the client. The
    /// rest of the request may have reached the origin.
    Early,
    /// The request reached the origin. The client saw at most a part of a response.
    Aborted,
    /// Nothing reached the client, and at most a part of the request reached the origin.
    Closed,
    /// The client left. The request, or a part of it, may have reached the origin.
    Left,
    /// A tunnel is open. The bytes that follow are between the client and the origin.
    Tunnel,
    /// The origin switched protocols. The client then received these bytes, which the origin
    /// echoed.
    Upgraded(String),
}

/// A response that the program makes itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnResponse {
    /// Its status.
    pub status: u16,
    /// A part of its body, compared without regard to case.
    pub words: String,
}

impl Outcome {
    /// Returns whether the complete request reaches the origin.
    pub fn reaches(&self) -> bool {
        matches!(
            self,
            Self::Forwarded
                | Self::Generated(_)
                | Self::Early
                | Self::Aborted
                | Self::Left
                | Self::Upgraded(_)
        )
    }

    /// Returns the program's own response, if the client gets it.
    pub fn own(&self) -> Option<&OwnResponse> {
        match self {
            Self::Refused(own) | Self::Cut(own) | Self::Served(own) | Self::Generated(own) => {
                Some(own)
            }
            _ => None,
        }
    }

    /// Returns whether the client gets the origin's response.
    pub fn shows(&self) -> bool {
        matches!(self, Self::Forwarded | Self::Early | Self::Upgraded(_))
    }
}

/// One client connection and its expected outcome.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// The name, unique in the corpus.
    pub name: String,
    /// The folder of the case, which is a class of hostile messages.
    pub class: String,
    /// The file and line, for error messages.
    pub location: String,
    /// The role in which the case runs; `None`: both.
    pub role: Option<Role>,
    /// The row of docs/refused.md, if an RFC allows the message that is refused here.
    pub valid: Option<String>,
    /// The bytes of the client.
    pub sent: Vec<String>,
    /// The requests that the origin must receive, one per block; empty: those that the client sent,
    /// unchanged.
    pub seen: Vec<Vec<String>>,
    /// The responses of the origin, one per block. By default the origin responds with the method
    /// and target of the request as the body.
    pub responses: Vec<Vec<String>>,
    /// The messages that the client must receive, one per block. The default is the origin's
    /// response.
    pub received: Vec<Vec<String>>,
    /// The outcome of each request.
    pub outcomes: Vec<Outcome>,
}

impl Case {
    /// Returns whether the case runs in this role.
    pub fn runs(&self, role: Role) -> bool {
        self.role.is_none_or(|only| only == role)
    }
}

/// Reads every case below `folder`, in the order of the file names.
///
/// # Panics
/// Panics if a file cannot be read or a line is invalid; the corpus is part of the test.
pub fn load(folder: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for class in sorted(folder) {
        if !class.is_dir() {
            continue;
        }
        for file in sorted(&class) {
            let text = fs::read_to_string(&file).expect("a corpus file is readable UTF-8");
            let class = class.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            parse(&text, &class, &name, &mut cases);
        }
    }
    for (index, case) in cases.iter().enumerate() {
        let earlier = cases[..index].iter().find(|other| other.name == case.name);
        assert!(earlier.is_none(), "{}: two cases are called `{}`", case.location, case.name);
        assert!(!case.sent.is_empty(), "{}: a case without `C>`", case.location);
        assert!(!case.outcomes.is_empty(), "{}: a case without an outcome", case.location);
    }
    cases
}

fn sorted(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("the corpus is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    paths.sort();
    paths
}

fn parse(text: &str, class: &str, file: &str, cases: &mut Vec<Case>) {
    let mut last = "";
    for (index, line) in text.lines().enumerate() {
        let location = format!("{class}/{file}:{}", index + 1);
        let prefix = line.get(..2).unwrap_or(line);
        let rest = line.get(2..).unwrap_or_default();
        let content = rest.strip_prefix(' ').unwrap_or(rest);
        if prefix == "==" {
            cases.push(Case {
                name: content.to_owned(),
                class: class.to_owned(),
                location,
                ..Case::default()
            });
        } else if line.is_empty() || line.starts_with('#') {
            // Between cases and blocks.
        } else if let Some(case) = cases.last_mut() {
            read_line(case, prefix, content, last == prefix, line, &location);
        } else {
            panic!("{location}: a line before the first case");
        }
        last = prefix;
    }
}

fn read_line(
    case: &mut Case,
    prefix: &str,
    content: &str,
    continues: bool,
    line: &str,
    location: &str,
) {
    let block = |blocks: &mut Vec<Vec<String>>| match blocks.last_mut() {
        Some(block) if continues => block.push(content.to_owned()),
        _ => blocks.push(vec![content.to_owned()]),
    };
    match prefix {
        "C>" => case.sent.push(content.to_owned()),
        "O<" => block(&mut case.seen),
        "O>" => block(&mut case.responses),
        "C<" => block(&mut case.received),
        "=>" => {
            let times =
                content.split_once(' ').and_then(|(count, rest)| Some((count.parse().ok()?, rest)));
            let (count, text) = times.unwrap_or((1, content));
            case.outcomes.extend(std::iter::repeat_n(outcome(text, location), count));
        }
        _ => match line {
            "role: boost" => case.role = Some(Role::Boost),
            "role: forward" => case.role = Some(Role::Forward),
            _ => match line.strip_prefix("valid: ") {
                Some(row) => case.valid = Some(row.to_owned()),
                None => panic!("{location}: unknown line: {line}"),
            },
        },
    }
}

fn outcome(text: &str, location: &str) -> Outcome {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let quoted = |text: &str| {
        let inner = text.trim().strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let inner = inner.unwrap_or_else(|| panic!("{location}: expected words in quotes"));
        unescaped(inner).unwrap_or_else(|why| panic!("{location}: {why}"))
    };
    let own = || {
        let (status, words) = rest.split_once(' ').unwrap_or((rest, "\"\""));
        let status = status.parse().unwrap_or_else(|_| panic!("{location}: expected a status"));
        OwnResponse { status, words: quoted(words) }
    };
    match word {
        "forwarded" => Outcome::Forwarded,
        "refused" => Outcome::Refused(own()),
        "cut" => Outcome::Cut(own()),
        "served" => Outcome::Served(own()),
        "generated" => Outcome::Generated(own()),
        "early" => Outcome::Early,
        "aborted" => Outcome::Aborted,
        "closed" => Outcome::Closed,
        "left" => Outcome::Left,
        "tunnel" => Outcome::Tunnel,
        "upgraded" => Outcome::Upgraded(quoted(rest)),
        _ => panic!("{location}: unknown outcome: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_outcomes_are_parsed() {
        let text = "# a file\n== one\nrole: boost\nvalid: a row\nC> GET / HTTP/1.1\nC>\nO< a\nO< b\n\n\
                    O< c\n=> forwarded\n=> refused 400 \"bad thing\"\n== two\nC> x\n=> cut 400\n";
        let mut cases = Vec::new();
        parse(text, "class", "file.txt", &mut cases);
        let [one, two] = &cases[..] else { panic!("two cases") };
        assert_eq!((one.name.as_str(), one.role), ("one", Some(Role::Boost)));
        assert_eq!((one.valid.as_deref(), &two.valid), (Some("a row"), &None));
        assert_eq!(one.sent, ["GET / HTTP/1.1", ""]);
        assert_eq!(one.seen, [vec!["a", "b"], vec!["c"]]);
        let own = |words: &str| OwnResponse { status: 400, words: words.to_owned() };
        assert_eq!(one.outcomes, [Outcome::Forwarded, Outcome::Refused(own("bad thing"))]);
        assert_eq!(two.outcomes, [Outcome::Cut(own(""))]);
        assert!(two.runs(Role::Boost) && two.runs(Role::Forward) && !one.runs(Role::Forward));
    }
}
