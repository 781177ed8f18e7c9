//! Bearer tokens: one a line in a file, all of them valid, so that a new one can be handed out before an old one goes.

use std::fmt;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, header};

use crate::TrustError;

/// The fewest characters of a token: 128 bits in hexadecimal digits.
pub const MIN_TOKEN: usize = 32;

/// How often the file is looked at for a change, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// A token (RFC 6750 §2.1, `b64token`); `place` says where it stands.
    pub(crate) fn parse(text: &str, place: impl FnOnce() -> String) -> Result<Self, TrustError> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if text.len() < MIN_TOKEN || !text.bytes().all(fits) {
            return Err(TrustError::Token { place: place() });
        }
        Ok(Secret(text.to_owned()))
    }

    pub(crate) fn authorization(&self) -> HeaderValue {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).expect("tokens are visible ASCII");
        value.set_sensitive(true);
        value
    }

    /// Takes as long whatever the first difference is. The length is no secret.
    fn is(&self, presented: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differ = own.iter().zip(presented).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differ) == 0 && own.len() == presented.len()
    }
}

/// The tokens in a file. Blank lines and those that begin with `#` are none.
pub(crate) fn read_file(file: &Path) -> Result<Vec<Secret>, TrustError> {
    let bytes = crate::read("token", file)?;
    let text = String::from_utf8(bytes).map_err(|_| TrustError::NoToken { file: file.to_owned() })?;
    let lines = text.lines().map(str::trim).enumerate();
    let tokens: Result<Vec<_>, _> = lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| Secret::parse(line, || format!("{}:{}", file.display(), number + 1)))
        .collect();
    tokens.and_then(|all| if all.is_empty() { Err(TrustError::NoToken { file: file.to_owned() }) } else { Ok(all) })
}

/// Say that others on this machine can read a secret.
pub(crate) fn warn_if_readable(what: &str, file: &Path) {
    let mode = std::fs::metadata(file).map(|metadata| metadata.permissions().mode()).unwrap_or(0);
    if mode & 0o004 != 0 {
        tracing::warn!(file = %file.display(), "every user of this machine can read this {what}; expected mode 600");
    }
}

/// The tokens that a controller takes. Their file is read again after a change.
pub struct Tokens {
    file: PathBuf,
    known: Mutex<Known>,
}

struct Known {
    tokens: Vec<Secret>,
    version: Option<Version>,
    looked: Instant,
}

/// What changes when a file does: modification time, size, inode.
type Version = (i64, i64, u64, u64);

fn version(file: &Path) -> Option<Version> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.mtime(), metadata.mtime_nsec(), metadata.size(), metadata.ino()))
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Those in `file`, at least one.
    ///
    /// # Errors
    /// When it cannot be read, has none, or one is too short.
    pub fn load(file: &Path) -> Result<Self, TrustError> {
        let version = version(file);
        let tokens = read_file(file)?;
        warn_if_readable("token file", file);
        Ok(Tokens { file: file.to_owned(), known: Mutex::new(Known { tokens, version, looked: Instant::now() }) })
    }

    /// Whether a request with these header fields, at `now`, carries one of them: exactly one `authorization` field, of
    /// the scheme `Bearer`.
    pub fn admit(&self, headers: &HeaderMap, now: Instant) -> bool {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(known.looked) >= LOOK_EVERY {
            known.looked = now;
            self.refresh(&mut known);
        }
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else { return false };
        let value = field.as_bytes();
        let Some((scheme, rest)) = value.split_at_checked("Bearer ".len()) else { return false };
        let presented = rest.trim_ascii();
        // Every token is compared, whichever fits.
        let fits = known.tokens.iter().fold(false, |fits, token| fits | token.is(presented));
        scheme.eq_ignore_ascii_case(b"Bearer ") && fits
    }

    fn refresh(&self, known: &mut Known) {
        let version = version(&self.file);
        if version == known.version {
            return;
        }
        known.version = version;
        match read_file(&self.file) {
            Ok(tokens) => {
                tracing::info!(file = %self.file.display(), tokens = tokens.len(), "the tokens were read again");
                known.tokens = tokens;
            }
            Err(error) => tracing::warn!(%error, "the tokens stay as they were"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "0123456789abcdef0123456789abcdef";
    const TWO: &str = "fedcba9876543210fedcba9876543210";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn with(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::AUTHORIZATION, HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn every_token_of_the_file_is_taken_and_nothing_else() {
        let file = file(&format!("# of this week\n{ONE}\n\n  {TWO} \n"));
        let tokens = Tokens::load(file.path()).unwrap();
        let now = Instant::now();
        for good in [format!("Bearer {ONE}"), format!("bearer  {TWO}"), format!("BEARER {TWO} ")] {
            assert!(tokens.admit(&with(&[&good]), now), "{good}");
        }
        let longer = format!("Bearer {ONE}0");
        let shorter = format!("Bearer {}", &ONE[1..]);
        let prefix = format!("Bearer {}", &ONE[..31]);
        let other = format!("Basic {ONE}");
        for bad in [&longer, &shorter, &prefix, &other, ONE, "Bearer", "Bearer ", "", "Bearer # of this week"] {
            assert!(!tokens.admit(&with(&[bad]), now), "{bad}");
        }
        assert!(!tokens.admit(&with(&[]), now));
        let good = format!("Bearer {ONE}");
        assert!(!tokens.admit(&with(&[&good, &good]), now), "two fields are none");
    }

    #[test]
    fn a_file_without_a_proper_token_is_refused_without_telling_what_is_in_it() {
        for (text, says) in [
            ("", "expected a token, one a line"),
            ("# nothing\n\n", "expected a token, one a line"),
            ("secret-but-short", ":1: expected a token of at least 32"),
            ("\n0123456789abcdef0123456789 secret", ":2: expected a token"),
        ] {
            let file = file(text);
            let error = Tokens::load(file.path()).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
            assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        }
        let missing = Tokens::load(Path::new("/nowhere/token")).unwrap_err().to_string();
        assert!(missing.starts_with("cannot read the token in /nowhere/token"), "{missing}");
    }

    #[test]
    fn no_token_is_printed() {
        let file = file(ONE);
        let tokens = Tokens::load(file.path()).unwrap();
        let secret = Secret::parse(ONE, String::new).unwrap();
        let printed = format!("{tokens:?} {secret:?} {:?}", secret.authorization());
        assert!(!printed.contains(ONE), "{printed}");
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_changes_nothing() {
        let file = file(ONE);
        let tokens = Tokens::load(file.path()).unwrap();
        let (one, two) = (with(&[&format!("Bearer {ONE}")]), with(&[&format!("Bearer {TWO}")]));
        let mut now = Instant::now();
        std::fs::write(file.path(), format!("{ONE}\n{TWO}\n")).unwrap();
        now += LOOK_EVERY;
        assert!(tokens.admit(&one, now) && tokens.admit(&two, now), "both, while the new one is handed out");
        std::fs::write(file.path(), TWO).unwrap();
        now += LOOK_EVERY;
        assert!(!tokens.admit(&one, now) && tokens.admit(&two, now));
        std::fs::write(file.path(), "short").unwrap();
        now += LOOK_EVERY;
        assert!(tokens.admit(&two, now));
        std::fs::remove_file(file.path()).unwrap();
        now += LOOK_EVERY;
        assert!(tokens.admit(&two, now));
    }
}
