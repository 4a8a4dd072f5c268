//! The parts of the gateway that ask the cluster's API, and the objects that each needs there.

/// Use of the cluster's API by the gateway or its controller. Each is off unless it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum ApiFeature {
    /// Say when configs have to be fetched again.
    Configs,
    /// Accept instances that Machines name.
    Inventory,
    /// Take bootstrap tokens as provisioning tokens.
    Tokens,
    /// Be told which CAs sign the client certificates of kubelets.
    ClientCa,
    /// Show the Machine Config Server's certificate, and be told of it.
    McsCertificate,
    /// Make the kubelets' bootstrap kubeconfig of what the cluster has.
    BootstrapKubeconfig,
    /// Give the pointers of machine sets the CAs that pointers carry now.
    Pointers,
    /// Approve the CSRs of kubelets whose machines have attested.
    Approval,
    /// Make the MachineConfigs that hand a node over to machine-config-daemon.
    SecondStage,
    /// Keep the store on objects of the API.
    Store,
    /// Show the machines as objects, and take edits of them.
    AttestedNodes,
}

impl ApiFeature {
    /// All parts, in the order of their declaration.
    pub const ALL: [Self; 11] = [
        Self::Configs,
        Self::Inventory,
        Self::Tokens,
        Self::ClientCa,
        Self::McsCertificate,
        Self::BootstrapKubeconfig,
        Self::Pointers,
        Self::Approval,
        Self::SecondStage,
        Self::Store,
        Self::AttestedNodes,
    ];

    /// Returns the name for the command line, which is also that of its roles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configs => "configs",
            Self::Inventory => "inventory",
            Self::Tokens => "tokens",
            Self::ClientCa => "client-ca",
            Self::McsCertificate => "mcs-certificate",
            Self::BootstrapKubeconfig => "bootstrap-kubeconfig",
            Self::Pointers => "pointers",
            Self::Approval => "approval",
            Self::SecondStage => "second-stage",
            Self::Store => "store",
            Self::AttestedNodes => "attested-nodes",
        }
    }

    /// Returns whether `attest-controller` does it, and the gateway has no right for it.
    #[must_use]
    pub const fn is_of_controller(self) -> bool {
        matches!(self, Self::Pointers | Self::Approval | Self::SecondStage)
    }

    /// Returns a sentence about the part's purpose.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Configs => "Watches when configs must be fetched again",
            Self::Inventory => "Accepts instances that Machine objects name",
            Self::Tokens => "Imports bootstrap tokens of Kubernetes as provisioning tokens",
            Self::ClientCa => "Reads the CAs that sign the client certificates of kubelets",
            Self::McsCertificate => "Serves with the Machine Config Server's certificate, and follows its rotation",
            Self::BootstrapKubeconfig => "Creates the kubelets' bootstrap kubeconfig from the cluster's objects",
            Self::Pointers => "Renews the CAs in the pointers of machine sets",
            Self::Approval => "Approves the CSRs of kubelets whose machines have attested",
            Self::SecondStage => "Creates the MachineConfigs of the second stage",
            Self::Store => "Stores the gateways' data in objects of the API",
            Self::AttestedNodes => "Publishes machines as objects, and accepts edits of them",
        }
    }

    /// Returns the roles that it needs, the account of its program bound to them, and what else the cluster has for it.
    #[must_use]
    pub(super) const fn roles(self) -> &'static str {
        macro_rules! roles {
            ($($part:ident: $folder:literal),+) => {
                match self {
                    $(Self::$part => include_str!(concat!("../../dist/kubernetes/parts/", $folder, "/roles.yaml")),)+
                }
            };
        }
        roles!(
            Configs: "configs",
            Inventory: "inventory",
            Tokens: "tokens",
            ClientCa: "client-ca",
            McsCertificate: "mcs-certificate",
            BootstrapKubeconfig: "bootstrap-kubeconfig",
            Pointers: "pointers",
            Approval: "approval",
            SecondStage: "second-stage",
            Store: "store",
            AttestedNodes: "attested-nodes"
        )
    }
}
