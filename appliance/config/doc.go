// Package config has all settings of the appliance, [Config], with defaults, parsing and
// validation, and derives from them the options of each part: the host as the dataplane sees it, the
// facts that Services are resolved against, the store's ranges and pools, the DNS server's names.
//
//	cfg := config.Default()
//	cfg.Manifests = []string{"/etc/svcctl/manifests"}
//	err := cfg.Validate() // all problems at once, each a *config.Error
package config
