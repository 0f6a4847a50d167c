!> The classes of NPB: size of the grid, time steps, and the norms that a right run ends with.
module classes
  use equations, only: dp, unknowns
  implicit none
  private

  integer, parameter, public :: write_interval = 5
  !< Every so many steps, and after the last one, the solution is written.

  type, public :: norms_type
    real(dp) :: residual(unknowns) = 0
    real(dp) :: error(unknowns) = 0
    real(dp) :: dumps(unknowns) = 0
    !< Mean of the error over everything that was written.
  end type norms_type

  type, public :: class_type
    character :: name = ' '
    integer :: n = 0
    integer :: steps = 0
    real(dp) :: dt = 0
    logical :: has_reference = .false.
    type(norms_type) :: reference
  contains
    procedure :: dumps
    procedure :: is_written
    procedure :: dump_bytes
    procedure :: operations
  end type class_type

  public :: find_class

contains

  !> The class of this name; `n` is 0 where there is none. NPB's reference norms of C are not known
  !> here, so nothing that C computes is called verified.
  pure function find_class(name) result(found)
    character, intent(in) :: name
    type(class_type) :: found

    select case (name)
    case ('S')
      found = class_type('S', 12, 60, 0.01_dp, .true., norms_type( &
          [.17034283709541311_dp, .012975252070034097_dp, .032527926989486055_dp, &
          .026436421275166801_dp, .19211784131744430_dp], &
          [4.9976913345811579e-4_dp, 4.5195666782961927e-5_dp, 7.3973765172921357e-5_dp, &
          7.3821238632439731e-5_dp, 8.9269630987491446e-4_dp], &
          [11.49036328945_dp, .9156788904727_dp, 2.857899428614_dp, 2.598273346734_dp, &
          26.52795397547_dp]))
    case ('W')
      found = class_type('W', 24, 200, 0.0008_dp, .true., norms_type( &
          [112.5590409344_dp, 11.80007595731_dp, 27.10329767846_dp, 24.69174937669_dp, &
          263.8427874317_dp], &
          [4.419655736008_dp, .4638531260002_dp, 1.011551749967_dp, .9235878729944_dp, &
          10.18045837718_dp], &
          [67.29594398612_dp, 5.264523081690_dp, 16.77107142637_dp, 15.08721463436_dp, &
          147.7018363393_dp]))
    case ('A')
      found = class_type('A', 64, 200, 0.0008_dp, .true., norms_type( &
          [108.06346714637264_dp, 11.319730901220813_dp, 25.974354511582465_dp, &
          23.665622544678910_dp, 252.78963211748344_dp], &
          [4.2348416040525025_dp, .44390282496995698_dp, .96692480136345650_dp, &
          .88302063039765474_dp, 9.7379901770829278_dp], &
          [64.82218724961_dp, 5.066461714527_dp, 16.13931961359_dp, 14.52010201481_dp, &
          142.0099377681_dp]))
    case ('B')
      found = class_type('B', 102, 200, 0.0003_dp, .true., norms_type( &
          [1423.3597229287254_dp, 99.330522590150238_dp, 356.46025644535285_dp, &
          324.85447959084092_dp, 3270.7541254659363_dp], &
          [52.969847140936856_dp, 4.4632896115670668_dp, 13.122573342210174_dp, &
          12.006925323559144_dp, 124.59576151035986_dp], &
          [147.7545106464_dp, 11.08895555053_dp, 36.98065590331_dp, 33.10505581440_dp, &
          315.7928282563_dp]))
    case ('C')
      found = class_type('C', 162, 200, 0.0001_dp, .false., norms_type())
    end select
  end function find_class

  pure logical function is_written(this, step)
    class(class_type), intent(in) :: this
    integer, intent(in) :: step

    is_written = mod(step, write_interval) == 0 .or. step == this%steps
  end function is_written

  pure integer function dumps(this)
    class(class_type), intent(in) :: this

    dumps = (this%steps + write_interval - 1) / write_interval
  end function dumps

  pure real(dp) function dump_bytes(this)
    class(class_type), intent(in) :: this

    dump_bytes = real(unknowns * storage_size(1.0_dp) / 8, dp) * real(this%n, dp)**3
  end function dump_bytes

  !> Floating-point operations of all steps, as NPB counts them, whatever a program really does.
  pure real(dp) function operations(this)
    class(class_type), intent(in) :: this
    real(dp) :: n

    n = real(this%n, dp)
    operations = this%steps * (3478.8_dp * n**3 - 17655.7_dp * n**2 + 28023.7_dp * n)
  end function operations

end module classes
