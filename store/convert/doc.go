// Package convert writes manifests of virtual services that were described in another way: by
// flags (`svcctl expose`), or by the configuration of keepalived, ipvsadm, HAProxy or nftlb, and of the
// objects of a cluster (`svcctl import`). It is pure: text in, text out.
//
// A source is read as a whole. What is understood and has no counterpart becomes a Loss, a
// comment in the YAML; what is not understood is an Error with its line, and no manifests.
package convert
