// Producers that are killed between their local transaction and the submit, and check-backs by dtm's Go helpers.

package test

import (
	"database/sql"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dtm-labs/dtm/client/dtmcli"
	"github.com/dtm-labs/dtm/client/dtmcli/dtmimp"
	"github.com/dtm-labs/dtm/client/dtmgrpc"
	"github.com/dtm-labs/dtm/dtmutil"
	"github.com/dtm-labs/dtm/test/busi"
	"github.com/stretchr/testify/assert"
)

const (
	dyingAs  = "DYING_PRODUCER" // protocol, and "before" or "after" the commit
	dyingGid = "DYING_GID"
)

// die prepares, does the local transaction or not, and kills its own process.
func die(how string, gid string) {
	protocol, when, _ := strings.Cut(how, " ")
	local := func(bb *dtmcli.BranchBarrier) error {
		err := bb.CallWithDB(dbGet().ToSQLDB(), func(tx *sql.Tx) error {
			err := busi.SagaAdjustBalance(tx, busi.TransOutUID, -30, "SUCCESS")
			if when == "before" {
				kill()
			}
			return err
		})
		dtmimp.E2P(err)
		kill()
		return nil
	}
	if protocol == "grpc" {
		msg := dtmgrpc.NewMsgGrpc(DtmGrpcServer, gid).
			Add(busi.BusiGrpc+"/busi.Busi/TransInBSaga", busi.GenReqGrpc(30, false, false))
		msg.TimeoutToFail = 1
		dtmimp.E2P(msg.DoAndSubmit(busi.BusiGrpc+"/busi.Busi/QueryPreparedB", local))
	}
	server := map[string]string{"http": DtmServer, "json-rpc": dtmutil.DefaultJrpcServer}[protocol]
	msg := dtmcli.NewMsg(server, gid).Add(busi.Busi+"/SagaBTransIn", busi.GenReqHTTP(30, false, false))
	msg.Protocol = protocol
	msg.TimeoutToFail = 1
	dtmimp.E2P(msg.DoAndSubmit(busi.Busi+"/QueryPreparedB", local))
}

func kill() {
	dtmimp.E2P(syscall.Kill(os.Getpid(), syscall.SIGKILL))
	select {}
}

func TestKilledProducer(t *testing.T) {
	for _, protocol := range []string{"http", "json-rpc", "grpc"} {
		for when, status := range map[string]string{"after": StatusSucceed, "before": StatusFailed} {
			t.Run(protocol+"-"+when, func(t *testing.T) {
				before := getBeforeBalances("mysql")
				gid := "killed-" + protocol + "-" + when
				producer := exec.Command(os.Args[0])
				producer.Env = append(os.Environ(), dyingAs+"="+protocol+" "+when, dyingGid+"="+gid)
				output, err := producer.CombinedOutput()
				assert.ErrorContains(t, err, "killed", string(output))
				until(t, gid+" is "+status, func() bool { return getTransStatus(gid) == status })
				if when == "after" {
					assertNotSameBalance(t, before, "mysql")
				} else {
					assertSameBalance(t, before, "mysql")
				}
			})
		}
	}
}
