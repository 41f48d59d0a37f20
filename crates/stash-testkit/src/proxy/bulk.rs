//! Bulk deletes that succeed in part.
//!
//! A request cannot be altered, since it is signed. So this reads its keys, deletes some of them itself, one by one, and
//! answers for the server. Of the keys that are reported as errors half are deleted all the same: an error says nothing of
//! that.

use super::Recorded;
use crate::plan::{fnv1a, splitmix64};

/// Deletes some of the keys in the body of a bulk delete; returns the answer's body.
pub(super) async fn delete_some(recorded: &Recorded, body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    let quiet = elements(&body, "Quiet").iter().any(|quiet| quiet == "true");
    let (mut done, mut failed) = (String::new(), String::new());
    for key in elements(&body, "Key") {
        let attempt = u64::from(recorded.request.attempt).wrapping_add(recorded.place as u64);
        let fate = splitmix64(fnv1a(key.bytes()) ^ splitmix64(attempt)) % 4;
        if fate != 0 {
            let request = &recorded.request;
            let deleted = recorded
                .shared
                .client
                .delete_object()
                .bucket(&request.bucket)
                .key(unescaped(&key))
                .send()
                .await;
            if fate != 1 && deleted.is_ok() {
                done.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
                continue;
            }
        }
        failed.push_str(&format!(
            "<Error><Key>{key}</Key><Code>InternalError</Code><Message>by plan of the fault proxy</Message></Error>"
        ));
    }
    if quiet {
        done.clear();
    }
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{done}\
         {failed}</DeleteResult>"
    )
}

/// The texts of all elements of a name, as they are written.
fn elements(xml: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let inner = |after: &str| after.split_once(end.as_str()).map(|(inner, _)| inner.to_owned());
    xml.split(begin.as_str()).skip(1).filter_map(inner).collect()
}

fn unescaped(text: &str) -> String {
    let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&apos;", "'");
    plain.replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_and_read() {
        let xml = "<Delete><Object><Key>a/b</Key></Object><Object><Key>&lt;&amp;amp;</Key></Object><Quiet>true</Quiet>";
        assert_eq!(elements(xml, "Key"), ["a/b", "&lt;&amp;amp;"]);
        assert_eq!(elements(xml, "Quiet"), ["true"]);
        assert_eq!(unescaped("&lt;&amp;amp;"), "<&amp;");
    }
}
