//! URLs as they may be shown.
//!
//! A URL that a person wrote may have secrets anywhere, where they belong and where not: before an `@`, in a parameter that
//! nobody knows, in an endpoint. So nothing is shown but what is known to be harmless: the scheme, the host, the path, and the
//! values of the parameters named here. Pure text: what cannot be read as a URL is shown by the same rule, and says less.

/// Parameters whose values are no secrets.
const HARMLESS: [&str; 20] = [
    "allow_insecure",
    "application_name",
    "bulk_delete",
    "checksum",
    "connect_timeout_s",
    "create_only",
    "endpoint",
    "host",
    "path_style",
    "profile",
    "put_bytes_max",
    "region",
    "retry_timeout_s",
    "schema",
    "sse",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "stall_timeout_s",
];

/// A URL, or a path, without what may be secret in it.
pub fn shown_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return match (text.rsplit_once('@'), text.split_once(':')) {
            // A path.
            _ if text.starts_with(['/', '.']) => text.to_owned(),
            (Some((_, behind)), _) => format!("***@{behind}"),
            (None, Some((scheme, _))) if !scheme.contains(['/', '.']) => format!("{scheme}:***"),
            (None, _) => text.to_owned(),
        };
    };
    if !scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c)) {
        return "***".to_owned();
    }
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let query = query.map(|query| query.split('&').map(shown_parameter).collect::<Vec<_>>().join("&"));
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    format!("{scheme}://{}{query}", shown_place(place))
}

/// Host, port and path.
fn shown_place(place: &str) -> String {
    if let Some((_, behind)) = place.rsplit_once('@') {
        return format!("***@{behind}");
    }
    let host = place.split('/').next().unwrap_or_default();
    match host.rsplit_once(':') {
        // Half of a name and a password whose `@` did not come to stand here.
        Some((_, port)) if !host.starts_with('[') && !port.bytes().all(|byte| byte.is_ascii_digit()) => {
            "***".to_owned()
        }
        _ => place.to_owned(),
    }
}

fn shown_parameter(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, value)) if HARMLESS.contains(&name) => {
            // An endpoint is a URL of its own; encoded, it may hold what an `@` would tell.
            let harmless = !value.contains(['@', '#']) && !value.to_ascii_lowercase().contains("%40");
            if harmless { parameter.to_owned() } else { format!("{name}=***") }
        }
        Some((name, _)) => format!("{name}=***"),
        None => "***".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_harmless_is_shown_as_it_is() {
        for text in [
            "s3://bucket/some/prefix?region=eu-west-1&endpoint=http://127.0.0.1:9000&path_style=true",
            "postgres://db.example.com:5432/stash?sslmode=verify-full&schema=stash",
            "postgres://[::1]:5432/stash",
            "file:///srv/a%20stash",
            "memory://",
            "/srv/stash",
            "./a:b",
            "/srv/a@b",
            "stash",
        ] {
            assert_eq!(shown_url(text), text);
        }
    }

    #[test]
    fn what_may_be_secret_is_not() {
        for (text, shown) in [
            ("s3://AK:SECRET@bucket/prefix", "s3://***@bucket/prefix"),
            ("s3://AK:SEC/RET+@bucket", "s3://***@bucket"),
            ("s3://AK:SEC?RET@bucket", "s3://***?***"),
            ("postgres://stash:se@cret@host/db", "postgres://***@host/db"),
            ("postgres:stash:SECRET", "postgres:***"),
            ("postgres://host/db?password=SECRET&schema=a", "postgres://host/db?password=***&schema=a"),
            ("s3://b/p?endpoint=http://AK:SECRET@host", "s3://b/p?endpoint=***"),
            ("s3://b/p?endpoint=http%3A%2F%2FAK%3ASECRET%40host", "s3://b/p?endpoint=***"),
            ("s3://b/p?SECRET", "s3://b/p?***"),
            ("SECRET and://more", "***"),
            ("no URL SECRET@host", "***@host"),
        ] {
            assert_eq!(shown_url(text), shown);
        }
    }
}
