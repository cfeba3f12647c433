//! Ranks that were not started alike, and training that cannot go on: every rank ends, and says why.

mod support;

use paceline_comm::Communicator;
use paceline_train::{
    BatchSize, DataSource, ModelName, Silent, TrainError, TrainOptions, TuneOptions, train, train_model,
};
use support::{Directory, backend, on_ranks, options, sample, sgd};

#[test]
fn ranks_with_different_options_or_data_are_told_so() {
    type Change = fn(&mut TrainOptions);
    let changes: [(Change, &str); 8] = [
        (|options| options.seed += 1, "the seed: `2` at rank 1, `1` at rank 0"),
        (|options| options.batch = BatchSize::Global(13), "the global batch size: `13` at rank 1, `12` at rank 0"),
        (|options| options.optimizer = sgd(0.25, 0.01), "the optimiser"),
        (|options| options.lr_schedule = "cosine".parse().unwrap(), "the learning rate: `0.02, cosine` at rank 1"),
        (|options| options.clip_norm = Some(1.0), "the norm to clip to"),
        (|options| options.iterations = Some(21), "the epochs and iterations"),
        (|options| options.strategy = "bsp-a2a".into(), "the strategy"),
        (|options| options.tune = Some(TuneOptions::default()), "whether calls are tuned: "),
    ];
    let data = [sample(50, 10), sample(51, 10)];
    let disagree = |change: Option<Change>, rank_1_data: usize| {
        let results = on_ranks(2, |communicator| {
            let rank = communicator.rank();
            let mut options = options();
            if let Some(change) = change.filter(|_| rank == 1) {
                change(&mut options);
            }
            train_model(communicator, backend(ModelName::Mlp, 0), &data[rank * rank_1_data], &options, &mut Silent)
        });
        results.into_iter().map(|result| result.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    for (change, subject) in changes {
        for message in disagree(Some(change), 0) {
            assert!(message.starts_with(&format!("rank 1 differs from rank 0 in {subject}")), "{message}");
        }
    }
    for message in disagree(None, 1) {
        assert!(
            message.starts_with("rank 1 differs from rank 0 in the training data: `51 images of 28×28"),
            "{message}"
        );
    }
}

#[test]
fn divergence_ends_every_rank_in_the_same_iteration() {
    let data = sample(100, 10);
    let mut options = options();
    options.learning_rate = 1e30;
    let results =
        on_ranks(3, |communicator| train_model(communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent));
    let iterations = results.into_iter().map(|result| match result {
        Err(TrainError::NotFinite { iteration, .. }) => iteration,
        other => panic!("{other:?}"),
    });
    let iterations: Vec<usize> = iterations.collect();
    assert!(iterations[0] < 20 && iterations.iter().all(|&iteration| iteration == iterations[0]), "{iterations:?}");
}

#[test]
fn a_strategy_for_other_links_is_refused() {
    let data = sample(20, 10);
    let options = TrainOptions { strategy: "protocol=tcp".into(), ..options() };
    let results =
        on_ranks(2, |communicator| train_model(communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent));
    for result in results {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("protocol=tcp") && message.contains("protocol=auto"), "{message}");
    }
}

#[test]
fn a_rank_without_data_tells_the_others_why_it_ends() {
    let results = on_ranks(3, |communicator| {
        let mut options = options();
        if communicator.rank() == 1 {
            options.data = DataSource::Idx("/nowhere".into());
        }
        train(communicator, &options, &mut Silent)
    });
    for (rank, result) in results.into_iter().enumerate() {
        let message = result.unwrap_err().to_string();
        assert!(message.contains("/nowhere/train-images-idx3-ubyte.gz"), "rank {rank}: {message}");
        // It may hear it from rank 1, or from a rank that heard it first and passes the words on.
        let told = message.contains("gave up") && message.contains("rank 1 on ");
        assert!(rank == 1 || told, "rank {rank}: {message}");
    }
}

#[test]
fn a_dump_that_cannot_be_written_says_where() {
    let directory = Directory::new();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let options = TrainOptions { dump_parameters: Some(file.clone()), iterations: Some(1), ..options() };
    let communicator = Communicator::solo().unwrap();
    let data = sample(12, 10);
    let error = train_model(&communicator, backend(ModelName::Mlp, 0), &data, &options, &mut Silent).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("rank 0: cannot write the parameters to") && message.contains("file"), "{message}");
}
