//! Two of three processes of a replica die at once. The third is told, gives up what it has, and begins anew with
//! the others.

use stash_crash::{ReplicaSetup, Setup, What, Who, World, message::Event, plan::live};

/// Runs a replica of three processes; two are killed when the `moment`th share travels between them.
async fn kill_two(survivor: u32, moment: usize) -> anyhow::Result<()> {
    let mut setup = Setup::new(crate::BINARY, 300 + moment as u64);
    setup.replicas = vec![
        ReplicaSetup { processes: 3, workers: 2, cuts: vec![2, 1] },
        ReplicaSetup { processes: 1, workers: 1, cuts: vec![3] },
    ];
    let mut world = World::start(setup).await?;
    let (mut shares, mut killed) = (0, 0);
    let mut launches_after = 0;
    while !world.is_over() {
        let happening = world.step().await?;
        match happening.what {
            What::Told(Event::Share { .. }) if killed == 0 => {
                shares += 1;
                if shares == moment {
                    for process in (0..3).filter(|process| *process != survivor) {
                        world.kill(Who::Replica(0, process))?;
                    }
                }
            }
            What::Killed => killed += 1,
            What::Told(Event::Opened { .. }) if killed == 2 && happening.who == Who::Replica(0, survivor) => {
                launches_after += 1;
            }
            _ => {}
        }
    }
    anyhow::ensure!(killed == 2, "{killed} processes were killed, after {shares} shares");
    anyhow::ensure!(launches_after > 0, "the survivor did not begin anew with the others");
    live(&mut world).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_processes_killed_at_once_cost_nothing_but_a_launch() {
    for (survivor, moment) in [(0, 1), (1, 2), (2, 5), (0, 9), (1, 14), (2, 17)] {
        crate::within_deadline(async {
            let ran = kill_two(survivor, moment).await;
            ran.map_err(|error| error.context(format!("survivor {survivor}, share {moment}")))
        })
        .await;
    }
}
