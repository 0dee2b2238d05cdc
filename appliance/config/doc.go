// Package config has everything the appliance can be told, [Config], with defaults, parsing and
// validation, and derives from it what each part is told: the host as the dataplane sees it, the
// facts that Services are resolved against, the store's ranges and pools, the DNS server's names.
//
//	cfg := config.Default()
//	cfg.Manifests = []string{"/etc/svcctl/manifests"}
//	err := cfg.Validate() // all problems at once, each a *config.Error
package config
