//! Names that refer to each other, and what to say when one refers to nothing.

use aftershock_core::name::nearest;

/// "unknown Api `Chrage`, did you mean `Charge`?"; without a near name, the valid ones are listed.
pub(crate) fn unknown<'a>(kind: &str, name: &str, valid: impl IntoIterator<Item = &'a str>) -> String {
    let mut valid: Vec<&str> = valid.into_iter().collect();
    match nearest(name, valid.iter().copied()) {
        Some(near) => format!("unknown {kind} `{name}`, did you mean `{near}`?"),
        None if valid.is_empty() => format!("unknown {kind} `{name}`: the file declares none"),
        None => {
            valid.sort_unstable();
            format!("unknown {kind} `{name}`, expected one of: {}", valid.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_or_with_all() {
        for (valid, expected) in [
            (&["GetCart", "Charge"][..], "unknown Api `Chrage`, did you mean `Charge`?"),
            (&["Ship", "GetCart"][..], "unknown Api `Chrage`, expected one of: GetCart, Ship"),
            (&[][..], "unknown Api `Chrage`: the file declares none"),
        ] {
            assert_eq!(unknown("Api", "Chrage", valid.iter().copied()), expected);
        }
    }
}
