//! What an acceptance writes.

use super::*;

fn accepted_answer() -> Answered {
    Answered {
        said: QuestionAnswer::Accepted { to: "f".to_owned() },
        at: START,
        by: "alice".to_owned(),
    }
}

fn acceptance(about: Acceptable, name: Option<&str>) -> Acceptance {
    Acceptance {
        pool: POOL.to_owned(),
        about,
        name: name.map(str::to_owned),
        answered: accepted_answer(),
    }
}

#[tokio::test]
async fn acceptance_answers_the_question_and_ends_the_wait() {
    let room = Room::new();
    wait(room.shows("tpm:a", &[1, 2], 0).await);
    wait(room.shows("tpm:b", &[2, 3], 0).await);
    let ids = [id(&[1, 2]), id(&[2, 3])];
    let answered = accepted_answer();
    let accepts = |about: Acceptable| acceptance(about, None);
    let [one, two] = [&[1, 2], &[2, 3]].map(|values| accepts(Acceptable::Values(all(values))));
    let wrong = accepts(Acceptable::Ek("0123".to_owned()));
    assert!(accept(&*room.store, vec![one.clone(), wrong]).await.is_err());
    assert!(room.rows(0).await.iter().all(|row| row.answered.is_none()), "all or none");
    accept(&*room.store, vec![one, two]).await.unwrap();
    assert!(room.rows(0).await.iter().all(|row| row.answered.as_ref() == Some(&answered)));
    // One that has not seen the file yet has its machine wait on.
    wait(room.shows("tpm:a", &[1, 2], 10).await);
    assert_eq!(room.ended("tpm:a").await, Some((ids[0].clone(), START)));
    assert_eq!(room.ended("tpm:a").await, None);
}

#[tokio::test]
async fn accepting_an_ek_endorses_it_for_the_pool_and_names_its_machine() {
    let room = Room::new();
    let digest = format!("{:064x}", 7);
    wait(room.unknown(7, "192.0.2.1", 0).await);
    accept(&*room.store, vec![acceptance(ek(7), Some("worker-7"))]).await.unwrap();
    let allowed = crate::enrolment::allowlist(&*room.store).await.unwrap();
    assert_eq!((allowed.len(), allowed[0].0.clone()), (1, format!("tpm:{digest}")));
    let record = &allowed[0].1;
    assert!(record.may_join(POOL) && !record.may_join("other") && record.name.as_deref() == Some("worker-7"));
    assert_eq!(
        crate::enrolment::names(&*room.store).await.unwrap(),
        [("worker-7".to_owned(), format!("tpm:{digest}"))]
    );
    assert!(room.rows(1).await[0].answered.is_some());
    // Another pool is added. A name that another machine has is not taken.
    let elsewhere = Acceptance {
        pool: "other".to_owned(),
        ..acceptance(ek(7), None)
    };
    accept(&*room.store, vec![elsewhere]).await.unwrap();
    let record = crate::enrolment::allowlist(&*room.store).await.unwrap().remove(0).1;
    assert!(record.may_join(POOL) && record.may_join("other") && record.name.as_deref() == Some("worker-7"));
    let taken = accept(&*room.store, vec![acceptance(ek(8), Some("worker-7"))]).await;
    assert!(matches!(taken, Err(AnswerError::Enrolment(_))), "{taken:?}");
    assert_eq!(
        crate::enrolment::allowlist(&*room.store).await.unwrap().len(),
        1,
        "nothing was written"
    );
}

#[tokio::test]
async fn accepting_a_name_moves_it() {
    let room = Room::new();
    for (number, name) in [(1, "worker-1"), (2, "worker-2")] {
        accept(&*room.store, vec![acceptance(ek(number), Some(name))]).await.unwrap();
    }
    let second = format!("tpm:{:064x}", 2);
    let about = Acceptable::Name {
        name: "worker-1".to_owned(),
        identity: second.clone(),
    };
    accept(&*room.store, vec![acceptance(about, None)]).await.unwrap();
    assert_eq!(
        crate::enrolment::names(&*room.store).await.unwrap(),
        [("worker-1".to_owned(), second)]
    );
    let listed = crate::enrolment::allowlist(&*room.store).await.unwrap();
    assert_eq!(
        listed[1].1.name.as_deref(),
        Some("worker-1"),
        "the allowlist gives it this name, too"
    );
}
