//! What a server makes of the policies, and what the evaluator makes of them, is the same.

use stash_testkit::servers::radosgw;

use crate::{
    policy::{Answer, Ask},
    policy_of,
    roles::{Role, policy_of_bucket},
};

/// The status of an answer, whatever it is.
macro_rules! status {
    ($request:expr) => {
        match $request.send().await {
            Ok(_) => 200,
            Err(error) => error.raw_response().expect("an answer").status().as_u16(),
        }
    };
}

#[tokio::test]
async fn agree_the_evaluator_and_a_server_that_enforces() {
    let Some(server) = radosgw().await else { return };
    let bucket = server.new_bucket("enforced").await;
    let (owner, arn) = (server.client(), format!("arn:aws:s3:::{bucket}"));
    let mut users = Vec::new();
    for role in Role::ALL {
        users.push((role, server.new_user(role.name()).await));
    }
    let named: Vec<(Role, &str)> = users.iter().map(|(role, user)| (*role, user.name.as_str())).collect();
    let policy = policy_of_bucket(&bucket, "p", &named);
    owner.put_bucket_policy().bucket(&bucket).policy(policy).send().await.expect("it is taken");
    for key in ["p/there", "p/stash.json", "q/there"] {
        owner.put_object().bucket(&bucket).key(key).body(vec![1].into()).send().await.expect("it is put");
    }
    for (role, user) in &users {
        let (role, client) = (*role, server.client_of(user));
        let mut told: Vec<(Ask, u16)> = Vec::new();
        for (key, fresh) in [("p/there", "p/new"), ("q/there", "q/new"), ("p/stash.json", "new")] {
            let object = |action: &str, key: &str| Ask::new(action, format!("{arn}/{key}"));
            let get = status!(client.get_object().bucket(&bucket).key(key));
            told.push((object("s3:GetObject", key), get));
            told.push((object("s3:GetObject", key), status!(client.head_object().bucket(&bucket).key(key))));
            let put = client.put_object().bucket(&bucket).key(fresh).if_none_match("*");
            told.push((object("s3:PutObject", fresh), status!(put.body(vec![1].into()))));
            let upload = owner.create_multipart_upload().bucket(&bucket).key(fresh).send().await;
            let upload = upload.expect("it begins").upload_id.expect("an id");
            let part = client.upload_part().bucket(&bucket).key(fresh).upload_id(&upload).part_number(1);
            told.push((object("s3:PutObject", fresh), status!(part.body(vec![1].into()))));
            let abort = client.abort_multipart_upload().bucket(&bucket).key(fresh).upload_id(&upload);
            told.push((object("s3:AbortMultipartUpload", fresh), status!(abort)));
            told.push((
                object("s3:DeleteObject", fresh),
                status!(client.delete_object().bucket(&bucket).key(fresh)),
            ));
            // For the next role, whether this one was let or not.
            owner.delete_object().bucket(&bucket).key(fresh).send().await.expect("it is deleted");
        }
        for prefix in ["p/", "p/s1/", "q/", "pp/"] {
            let list = status!(client.list_objects_v2().bucket(&bucket).prefix(prefix));
            told.push((Ask::new("s3:ListBucket", &arn).with("s3:prefix", prefix), list));
        }
        told.push((Ask::new("s3:ListBucket", &arn), status!(client.list_objects_v2().bucket(&bucket))));
        let uploads = status!(client.list_multipart_uploads().bucket(&bucket).prefix("p/"));
        told.push((Ask::new("s3:ListBucketMultipartUploads", &arn), uploads));
        told.push((
            Ask::new("s3:GetBucketPolicy", &arn),
            status!(client.get_bucket_policy().bucket(&bucket)),
        ));
        let policy = policy_of(role, &bucket, "p");
        let allowed = |ask: &Ask| policy.answer(ask) == Answer::Allowed;
        for (ask, status) in &told {
            assert_eq!(allowed(ask), *status != 403, "{role:?} was told {status}: {ask:?}");
        }
        assert!(told.iter().any(|(ask, _)| allowed(ask)) && told.iter().any(|(ask, _)| !allowed(ask)));
    }
}
