package kernel

import (
	"golang.org/x/sys/unix"

	"svcctl.io/svcctl/nft"
	"svcctl.io/svcctl/nft/nfnetlink"
)

// object begins a message about a named object of a type (NFT_OBJECT_*).
func (t *transaction) object(kind, flags uint16, f nft.Family, name string, objectType uint32) {
	t.message(kind, flags, f)
	t.Text(unix.NFTA_OBJ_TABLE, t.table)
	t.Text(unix.NFTA_OBJ_NAME, name)
	t.Uint32(unix.NFTA_OBJ_TYPE, objectType)
}

// addObject begins a message that creates an object; its content and End follow.
func (t *transaction) addObject(f nft.Family, name string, objectType uint32) {
	t.object(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, f, name, objectType)
}

// deleteObject deletes an object.
func (t *transaction) deleteObject(f nft.Family, name string, objectType uint32) {
	t.object(unix.NFT_MSG_DELOBJ, 0, f, name, objectType)
	t.End()
}

// dumpObjects hands the name and the content of every object of a type in our table to each.
func dumpObjects(s *socket, f nft.Family, objectType uint32, each func(name string, data []byte)) error {
	return s.dump(unix.NFT_MSG_GETOBJ, protocolFamily(f),
		func(w *writer) {
			w.Text(unix.NFTA_OBJ_TABLE, nft.TableName)
			w.Uint32(unix.NFTA_OBJ_TYPE, objectType)
		},
		func(m message) {
			var table, name string
			var kind uint64
			var data []byte
			for attribute, value := range m.Attributes() {
				switch attribute {
				case unix.NFTA_OBJ_TABLE:
					table = nfnetlink.Text(value)
				case unix.NFTA_OBJ_NAME:
					name = nfnetlink.Text(value)
				case unix.NFTA_OBJ_TYPE:
					kind = nfnetlink.Number(value)
				case unix.NFTA_OBJ_DATA:
					data = value
				}
			}
			if table == nft.TableName && kind == uint64(objectType) {
				each(name, data)
			}
		})
}
