// Package admin has the words of the verb admin: export, restore, alloc, pin, kubeconfig, token and env.
package admin
