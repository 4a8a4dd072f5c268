//! Tests of OpenStack's stand-in.

use crate::client::ask;
use cloud_fixtures::openstack::OpenStackMetadataServer;

#[tokio::test]
async fn user_data_is_there_once_it_is_set() {
    let server = OpenStackMetadataServer::start();
    for path in ["/openstack/latest/user_data", "/openstack/2018-08-27/user_data"] {
        server.set_user_data(None);
        assert_eq!(ask(&server, "GET", path, &[]).await.status, 404);
        server.set_user_data(Some(b"{}"));
        let answer = ask(&server, "GET", path, &[]).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "{}"));
    }
    for path in ["/", "/openstack/1999-01-01/user_data", "/openstack/user_data", "/latest/user-data"] {
        assert_eq!(ask(&server, "GET", path, &[]).await.status, 404, "{path}");
    }
    assert!(
        ask(&server, "GET", "/openstack", &[])
            .await
            .body
            .lines()
            .any(|line| line == "latest")
    );
}
