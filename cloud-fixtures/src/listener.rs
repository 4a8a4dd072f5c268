//! A listener with a thread of its own, switched off and on at its address.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc as commands;
use tokio::task::JoinSet;

/// Connections that wait to be accepted: more than a test opens at once.
const BACKLOG: u32 = 128;

enum ListenerCommand {
    Down(mpsc::Sender<()>),
    Up(mpsc::Sender<()>),
}

/// A listener that runs until it is dropped.
pub(crate) struct Listener {
    address: SocketAddr,
    commands: Option<commands::UnboundedSender<ListenerCommand>>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts a listener that calls this for each connection.
    pub(crate) fn start<F>(address: SocketAddr, connection: impl Fn(TcpStream) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, receiver) = commands::unbounded_channel();
        let (started, address_is) = mpsc::channel();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = bind(address).listen(BACKLOG).unwrap();
                started.send(listener.local_addr().unwrap()).unwrap();
                run(listener, receiver, connection).await;
            });
        };
        let thread = std::thread::spawn(run);
        Self {
            address: address_is.recv().unwrap_or_else(|_| panic!("cannot listen at {address}")),
            commands: Some(sender),
            thread: Some(thread),
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Refuses connections, and closes the existing ones, before it returns.
    pub(crate) fn down(&self) {
        self.command(ListenerCommand::Down);
    }

    /// Listens at the same port as before, when it returns.
    pub(crate) fn up(&self) {
        self.command(ListenerCommand::Up);
    }

    fn command(&self, command: impl FnOnce(mpsc::Sender<()>) -> ListenerCommand) {
        let (done, is_done) = mpsc::channel();
        self.commands.as_ref().unwrap().send(command(done)).ok().unwrap();
        is_done.recv().unwrap();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Without commands the thread ends.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// Binds a socket without listening: connections are refused, and no other socket gets the port. Only a socket that requests this very port
/// shares it.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }
    .unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

enum Socket {
    Listening(TcpListener),
    Refusing(TcpSocket),
}

async fn run<F>(listener: TcpListener, mut commands: commands::UnboundedReceiver<ListenerCommand>, connection: impl Fn(TcpStream) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let address = listener.local_addr().unwrap();
    let mut socket = Socket::Listening(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => return,
                Some(ListenerCommand::Down(done)) => {
                    // It is taken once more before it is let go: in between, another server would get it.
                    if matches!(socket, Socket::Listening(_)) {
                        socket = Socket::Refusing(bind(address));
                    }
                    connections.shutdown().await;
                    done.send(()).unwrap();
                }
                Some(ListenerCommand::Up(done)) => {
                    if let Socket::Refusing(refusing) = socket {
                        socket = Socket::Listening(refusing.listen(BACKLOG).unwrap());
                    }
                    done.send(()).unwrap();
                }
            },
            stream = accept(&socket) => drop(connections.spawn(connection(stream))),
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accept(socket: &Socket) -> TcpStream {
    match socket {
        Socket::Listening(listener) => listener.accept().await.unwrap().0,
        Socket::Refusing(_) => std::future::pending().await,
    }
}
