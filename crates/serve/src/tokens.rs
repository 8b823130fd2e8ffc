//! The rights of callers: tokens with their roles, from a file that may change, or one that was made at the start.
//!
//! Tokens are kept as hashes with a salt of this process. A lookup compares hashes, whose timing tells nothing.

use std::{
    collections::HashMap,
    fmt,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{
        Arc, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use lockkeeper::support::sentence;
use rustix::process::geteuid;
use sha2::{Digest, Sha256};

use crate::{count::Count, error::ServeError, rate::Bucket};

/// The shortest token that a file may have.
const SHORTEST: usize = 16;

/// The rights of a token. Each role includes the roles before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Look at locks, latches, leaders and metrics.
    Look,
    /// Acquire, renew and release; work with latches and fences.
    Use,
    /// Evict holders.
    Administer,
}

impl Role {
    /// Returns the role's word in files and messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Use => "use",
            Self::Administer => "administer",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        [Self::Look, Self::Use, Self::Administer].into_iter().find(|role| role.word() == word)
    }
}

/// The owner of a token.
pub(crate) struct Who {
    /// Tells the token from others, without revealing it.
    pub(crate) id: Hash,
    /// The owner's name in logs and on holders.
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
    /// Beginnings of the names that it may use; empty if it may use all.
    pub(crate) prefixes: Vec<String>,
    pub(crate) rate: Bucket,
    /// Its requests that are worked on.
    pub(crate) busy: Arc<Count>,
    /// Its streams without an end.
    pub(crate) streams: Arc<Count>,
    revoked: AtomicBool,
}

impl Who {
    /// Whether it may use locks of this name.
    pub(crate) fn may_use(&self, name: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    /// Whether its token was taken out of the file since it was shown.
    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    fn says(&self, line: &Line) -> bool {
        (&*self.name, self.role, &self.prefixes) == (&line.name, line.role, &line.prefixes)
    }
}

impl fmt::Debug for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.role.word())
    }
}

/// The hash of a token, with the salt of this process.
pub(crate) type Hash = [u8; 32];

/// All tokens of a server.
pub(crate) struct Tokens {
    salt: [u8; 16],
    per_second: f64,
    known: RwLock<HashMap<Hash, Arc<Who>>>,
}

/// One line of a file.
struct Line {
    token: String,
    role: Role,
    name: String,
    prefixes: Vec<String>,
}

impl Tokens {
    /// Reads the tokens of a file.
    pub(crate) fn from_file(file: &Path, per_second: u32) -> Result<Self, ServeError> {
        let tokens = Self::empty(per_second)?;
        tokens.load(file)?;
        Ok(tokens)
    }

    /// Makes one token of the role `administer`. Its text is returned and kept nowhere else.
    pub(crate) fn generated(per_second: u32) -> Result<(Self, String), ServeError> {
        let token = random_token()?;
        let tokens = Self::empty(per_second)?;
        let line = Line {
            token: token.clone(),
            role: Role::Administer,
            name: "operator".into(),
            prefixes: Vec::new(),
        };
        tokens.replace(vec![line]);
        Ok((tokens, token))
    }

    fn empty(per_second: u32) -> Result<Self, ServeError> {
        let mut salt = [0; 16];
        random(&mut salt)?;
        Ok(Self { salt, per_second: f64::from(per_second), known: RwLock::default() })
    }

    /// Reads a file anew and returns the number of its tokens. If it cannot be used, the tokens of before stay.
    pub(crate) fn load(&self, file: &Path) -> Result<usize, ServeError> {
        let shown = file.display();
        let unreadable = |error: io::Error| {
            ServeError::usage(format!("cannot read the token file {shown}: {}", sentence::of(&error)))
        };
        let mut opened = File::open(file).map_err(unreadable)?;
        let found = opened.metadata().map_err(unreadable)?;
        if is_open_to_others(found.uid(), found.mode(), geteuid().as_raw()) {
            return Err(ServeError::usage(format!(
                "others can read or write the token file {shown} (its mode is {:03o}); run: chmod 600 {shown}",
                found.mode() & 0o777
            )));
        }
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(unreadable)?;
        let lines =
            parse(&text).map_err(|why| ServeError::usage(format!("the token file {shown}: {why}")))?;
        let count = lines.len();
        self.replace(lines);
        Ok(count)
    }

    fn replace(&self, lines: Vec<Line>) {
        let mut known = self.known.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        for line in lines {
            let hash = self.hash(&line.token);
            // An owner that stays the same keeps its rate and its requests that wait.
            let who = match before.remove(&hash) {
                Some(who) if who.says(&line) => who,
                other => {
                    revoke(other);
                    Arc::new(Who {
                        id: hash,
                        name: line.name.into(),
                        role: line.role,
                        prefixes: line.prefixes,
                        rate: Bucket::new(self.per_second, self.per_second * 2.0),
                        busy: Arc::default(),
                        streams: Arc::default(),
                        revoked: AtomicBool::new(false),
                    })
                }
            };
            known.insert(hash, who);
        }
        before.into_values().for_each(|who| revoke(Some(who)));
    }

    fn hash(&self, token: &str) -> Hash {
        Sha256::new().chain_update(self.salt).chain_update(token).finalize().into()
    }

    /// Returns the owner of `token`.
    pub(crate) fn find(&self, token: &str) -> Option<Arc<Who>> {
        let hash = self.hash(token);
        self.known.read().unwrap_or_else(std::sync::PoisonError::into_inner).get(&hash).cloned()
    }
}

fn revoke(who: Option<Arc<Who>>) {
    if let Some(who) = who {
        who.revoked.store(true, Ordering::Release);
    }
}

fn random(bytes: &mut [u8]) -> Result<(), ServeError> {
    getrandom::fill(bytes).map_err(|error| ServeError::internal(format!("no random numbers: {error}")))
}

/// Whether a file of secrets is open to others than its owner. As with ssh, this matters for files of the own user
/// only: the owner of any other file has chosen its readers, such as by a group for this program.
fn is_open_to_others(owner: u32, mode: u32, own: u32) -> bool {
    owner == own && mode & 0o077 != 0
}

/// Returns 256 random bits as text that needs no escaping anywhere.
fn random_token() -> Result<String, ServeError> {
    let mut bytes = [0; 32];
    random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Reads lines `ROLE TOKEN [NAME [PREFIX…]]`. Error messages never repeat a token.
fn parse(text: &str) -> Result<Vec<Line>, String> {
    let mut lines: Vec<Line> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let at = index + 1;
        let mut words = line.split_whitespace();
        let Some(role) = words.next().filter(|word| !word.starts_with('#')) else { continue };
        let role = Role::from_word(role)
            .ok_or_else(|| format!("line {at} begins with no role; write look, use or administer first"))?;
        let token = words.next().ok_or_else(|| format!("line {at} has no token; write ROLE TOKEN NAME"))?;
        if token.len() < SHORTEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!(
                "the token of line {at} is too easy to guess or not plain text; give {SHORTEST} or more letters, such as \
                 of: openssl rand -hex 32"
            ));
        }
        if lines.iter().any(|line| line.token == token) {
            return Err(format!("the token of line {at} stands there twice; give everybody their own"));
        }
        let words: Vec<&str> = words.collect();
        if words.iter().any(|word| word.starts_with('#')) {
            return Err(format!(
                "line {at} has a # behind its token, which would be read as a name or a prefix; write comments on lines of \
                 their own"
            ));
        }
        let mut words = words.into_iter();
        let name = words.next().map_or_else(|| format!("{}-{at}", role.word()), str::to_owned);
        lines.push(Line { token: token.into(), role, name, prefixes: words.map(str::to_owned).collect() });
    }
    if lines.is_empty() {
        return Err("it has no tokens; write lines ROLE TOKEN NAME".into());
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Tokens {
        let tokens = Tokens::empty(10).expect("random numbers");
        tokens.replace(parse(text).expect("a good file"));
        tokens
    }

    #[test]
    fn lines_say_role_name_and_prefixes() {
        let tokens = tokens(
            "# people\n\nlook aaaaaaaaaaaaaaaa\nuse bbbbbbbbbbbbbbbb ci ci/ build/\n  administer cccccccccccccccc ops\n",
        );
        let who = tokens.find("bbbbbbbbbbbbbbbb").expect("known");
        assert_eq!((&*who.name, who.role), ("ci", Role::Use));
        assert!(who.may_use("ci/1") && who.may_use("build/") && !who.may_use("prod/1") && !who.may_use("ci"));
        let who = tokens.find("aaaaaaaaaaaaaaaa").expect("known");
        assert!(who.may_use("anything") && &*who.name == "look-3");
        assert!(tokens.find("").is_none() && tokens.find("bbbbbbbbbbbbbbb").is_none());
    }

    #[test]
    fn a_token_that_is_taken_out_is_revoked_and_others_stay() {
        let tokens = tokens("use aaaaaaaaaaaaaaaa a\nuse bbbbbbbbbbbbbbbb b\nuse cccccccccccccccc c\n");
        let [a, b, c] = ["a", "b", "c"].map(|letter| tokens.find(&letter.repeat(16)).expect("known"));
        tokens.replace(parse("use aaaaaaaaaaaaaaaa a\nlook cccccccccccccccc c\n").expect("a good file"));
        assert!(!a.is_revoked() && b.is_revoked() && c.is_revoked());
        assert!(Arc::ptr_eq(&a, &tokens.find(&"a".repeat(16)).expect("still known")));
        assert!(tokens.find(&"b".repeat(16)).is_none());
        assert_eq!(tokens.find(&"c".repeat(16)).expect("with less").role, Role::Look);
    }

    #[test]
    fn bad_lines_are_refused_without_their_token() {
        for (text, says) in [
            ("", "no tokens"),
            ("root canarycanarycanary", "no role"),
            ("use", "no token"),
            ("use canary", "too easy"),
            ("use canarycanarycanaré", "too easy"),
            ("use canarycanarycanary # everybody", "a #"),
            ("use canarycanarycanary ci ci/ # team ci", "a #"),
            ("use canarycanarycanary a\nlook canarycanarycanary b", "twice"),
        ] {
            let error = parse(text).map(drop).expect_err(text);
            assert!(error.contains(says) && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn a_file_of_the_own_user_is_for_nobody_else() {
        for (mode, open) in
            [(0o600, false), (0o400, false), (0o700, false), (0o640, true), (0o604, true), (0o602, true)]
        {
            assert_eq!(is_open_to_others(7, 0o100_000 | mode, 7), open, "{mode:o}");
            assert!(!is_open_to_others(0, 0o100_000 | mode, 7), "its owner has decided");
        }
    }

    #[test]
    fn roles_include_those_below() {
        assert!(Role::Look < Role::Use && Role::Use < Role::Administer);
    }
}
