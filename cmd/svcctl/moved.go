package main

import ()

// moved has the earlier spellings of verbs, with those of now.
var moved = map[string]string{
	"announcements": "`svcctl announce status` now",
	"drain":         "`svcctl announce drain` now",
	"undrain":       "`svcctl announce undrain` now",
	"source":        "`svcctl fleet source` now",
	"rollout":       "`svcctl fleet rollout` now",
	"schema":        "`svcctl validate --schema` now",
	"trial":         "`svcctl confirm --start` now; `svcctl confirm --state` shows it",
	"release":       "`svcctl confirm --removals` now",
	"conns":         "`svcctl top --connections` now",
	"export":        "`svcctl admin export` now",
	"restore":       "`svcctl admin restore` now",
	"alloc":         "`svcctl admin alloc` now",
	"pin":           "`svcctl admin pin` now",
	"kubeconfig":    "`svcctl admin kubeconfig` now",
	"token":         "`svcctl admin token` now; for kubectl, write the kubeconfig again by `svcctl admin kubeconfig`",
	"env":           "`svcctl admin env` now",
}
